"""The local RocksDB of a host, behind one wrapper."""
