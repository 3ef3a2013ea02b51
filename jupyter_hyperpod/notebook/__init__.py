"""What a kernel sees: magics, their completion, and the output under the cell. No server needed."""
