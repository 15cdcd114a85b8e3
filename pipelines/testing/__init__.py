"""The harness with which users test an operator without Spark."""
