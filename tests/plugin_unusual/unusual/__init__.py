"""Right attentions that are written or behave as none of attnzoo's own, each with a wrong twin in `unusual.wrong`."""
