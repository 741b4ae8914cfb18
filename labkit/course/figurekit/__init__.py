"""What the labs' pictures are made with: colours and marks, text, labels, and memory by kind."""
