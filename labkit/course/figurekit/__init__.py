"""What the labs' pictures are made with: colours and marks, text and labels, memory by kind, limits, predictions."""
