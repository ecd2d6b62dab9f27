"""The document's service: an API (`main`) and its Celery tasks (`tasks`)."""
