"""Counting in more images than one process or one machine should: shards, each one Parquet file."""
