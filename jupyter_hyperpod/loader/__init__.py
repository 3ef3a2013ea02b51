"""The model loader: reads tensors from an object store at the speed of the network, and writes models.

Read in this order: `header` (what a safetensors file says); in `read`, `tensor_parallel` and `plan` (which bytes go
where, pure), `sources` (`mount_source`, `http`, `s3`, `local`: how bytes are read, and retried), `stream` (many reads
at once); `memory` (where they land); in `share`, `fanout` (`shared_buffer`, `board`, `peers`: the ranks of a job share
one read); `model` (`load_model`). In `write`: `layout` (which tensors in which file, pure), `destinations` (where files
go: `directory`, `bucket`), `writer` (writes parts in parallel, then switches to the new model), `save` and `sharding`.
"""
