"""Files of other machines: stores, web servers and the hub, read ahead and kept on disk.

`storage` is the door: the core finds it through `shardwise.storage.open`. `stores` connects to
each kind of store, `requests` sends what is asked until it is there, `prefetch` reads ahead,
`cache` keeps blocks on disk; `remote_file` is a file in the middle of them.
"""
