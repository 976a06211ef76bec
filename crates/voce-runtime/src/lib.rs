//! Arena, thread pool and CPU kernels for streaming speech models.
