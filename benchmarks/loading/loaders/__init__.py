"""The loaders, each as its own documentation advises, and the process that measures one."""
