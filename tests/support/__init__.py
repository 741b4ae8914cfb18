"""What tests share: paths, small models, made-up runs, and oracles that run in processes of their own."""
