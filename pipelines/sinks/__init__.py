"""Where a batch's output goes: Delta tables, other sinks and none. A sink reports which attempt of a batch it holds."""
