"""What runs on a schedule beside a running query: snapshots, audits, retention and the verification of snapshots."""
