"""HyperPod clusters of AWS: listed, described, made a context of the kubeconfig. Tested against moto, not on AWS."""
