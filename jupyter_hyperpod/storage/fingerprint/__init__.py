"""What a job was submitted with: its Python, packages, project, devices, and the names of its variables."""
