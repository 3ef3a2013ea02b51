"""The fast model loader: object store → tensors, at the speed of the socket.

Read in this order: `header` (what a safetensors file says), `tp` and `plan` (which bytes go where, pure), `sources`
(`shared`, `http`, `s3`, `local`: how bytes are had), `memory` (where they land), `stream` (many at once), `fanout`
(`commons`, `board`, `peers`: ranks of a job read once for all), `model` (`load_model`). The other way: `layout` (which
tensors in which file, pure), `places` and `bucket` (where files go), `writing` (parts, many at once, then the switch),
`save` and `sharding`.
"""
