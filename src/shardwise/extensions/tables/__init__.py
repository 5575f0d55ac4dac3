"""Tables: Parquet, Arrow files, Lance, Hugging Face datasets."""
