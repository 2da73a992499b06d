"""What a paper's table or figure is made of here, one file a paper."""
