"""Scalings of each layer's gradient before the clip, from the second moments of public or made-up inputs."""
