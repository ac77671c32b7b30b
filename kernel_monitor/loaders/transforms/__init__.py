"""What happens to each image: the user's transforms, their random numbers, their translation."""
