"""The data set: the file of each sample, a check of the file, and the sample on the torchvision path.

A data set and a batch's keys go in; samples come out. First: `file_source`, which locates and opens the files;
`keyed_dataset` computes batches in the workers; `file_check` decides which files DALI may read.

Internal: no part of the public interface.
"""
