"""The job store on disk: its layout, journals and output files. Only this package opens event files."""
