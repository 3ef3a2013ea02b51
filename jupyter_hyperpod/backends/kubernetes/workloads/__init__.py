"""The kinds of objects that make the pod of a node: a plain Job, or one of HyperPod's training operator."""
