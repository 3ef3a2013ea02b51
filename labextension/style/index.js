import 'uplot/dist/uPlot.min.css';
import './base.css';
import './run.css';
import './forced.css';
