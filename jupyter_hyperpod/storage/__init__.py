"""The job store on disk: layout, journals, mounts. The only package that opens event files."""
