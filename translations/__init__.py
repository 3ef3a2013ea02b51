"""The texts of the JupyterLab extension in other languages; not in the wheel, which has what is made of them."""
