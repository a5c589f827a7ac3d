"""Batch inference: millions of images through workers of this machine, of Ray or of Spark, into parquet files."""
