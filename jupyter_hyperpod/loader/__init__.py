"""The model loader: reads tensors from an object store at the speed of the network, and writes models.

Read in this order: `header` (what a safetensors file says), `tp` and `plan` (which bytes go where, pure), `sources`
(`mount_source`, `http`, `s3`, `local`: how bytes are read), `memory` (where they land), `stream` (many reads at once),
`fanout` (`shared_buffer`, `board`, `peers`: the ranks of a job share one read), `model` (`load_model`). For writing:
`layout` (which tensors in which file, pure), `places` and `bucket` (where files go), `writer` (writes parts in
parallel, then switches to the new model), `save` and `sharding`.
"""
