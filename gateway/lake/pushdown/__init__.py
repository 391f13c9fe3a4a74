"""The client's filters in the words of the engines that read."""
