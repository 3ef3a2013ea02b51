"""The notebook's side: magics, their completion, and the output under the cell. It works without a server."""
