"""Copies of a checkpoint elsewhere: clones, mirrors and savepoints, and the labels of savepoints."""
