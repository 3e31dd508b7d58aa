"""What turns a layer's input into q, k and v, one file each; the interface is `attnzoo.model.projection.Projection`."""
