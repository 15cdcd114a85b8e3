"""The local RocksDB of a host, wrapped once."""
