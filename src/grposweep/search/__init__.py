"""What a sweep searches and how: the space, its valid points, the sampler, the study."""
