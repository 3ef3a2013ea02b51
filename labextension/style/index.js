import 'uplot/dist/uPlot.min.css';
import './base.css';
import './run.css';
import './runs.css';
import './compare.css';
import './schedules.css';
import './reading.css';
import './forced.css';
