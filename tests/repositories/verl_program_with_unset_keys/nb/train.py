import verl
