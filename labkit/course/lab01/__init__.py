"""Lab 01: where is the model when it is "loaded"?"""
