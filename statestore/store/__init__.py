"""One store on one host: the `StateStore` of a task, the load of a version, and the local RocksDB."""
