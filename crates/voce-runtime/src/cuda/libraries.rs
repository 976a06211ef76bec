//! Where NVIDIA's libraries are looked for: beside what the loader knows, in the usual folders.

use std::path::PathBuf;

use super::CudaError;

/// How to get the kernels' compiler.
pub(crate) const NVRTC_HINT: &str =
    "install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc` and let VOCE_CUDA_LIB name its lib folder";
/// How to get the matrix products.
pub(crate) const BLAS_HINT: &str =
    "install the CUDA toolkit, or `pip install nvidia-cublas` and let VOCE_CUDA_LIB name its lib folder";

/// Folders, separated by colons, in which the libraries are looked for first.
pub(crate) const LIBRARY_ENV: &str = "VOCE_CUDA_LIB";

/// Whether the matrix products are there, and the kernels' compiler where it is needed.
pub(crate) fn check(must_compile: bool) -> Result<(), CudaError> {
    preload("nvrtc");
    preload("cublasLt");
    // SAFETY: looks for the libraries.
    let (nvrtc, blas) =
        unsafe { (cudarc::nvrtc::sys::is_culib_present(), cudarc::cublaslt::sys::is_culib_present()) };
    if must_compile && !nvrtc {
        return Err(CudaError::NoLibrary { name: "libnvrtc", hint: NVRTC_HINT });
    }
    if !blas {
        return Err(CudaError::NoLibrary { name: "libcublasLt", hint: BLAS_HINT });
    }
    Ok(())
}

/// Loads a library from one of the folders, so that it is known by its name from then on.
pub(crate) fn preload(name: &str) {
    let named = std::env::var(LIBRARY_ENV).unwrap_or_default();
    let folders = named.split(':').filter(|f| !f.is_empty()).chain([
        "/usr/local/cuda/lib64",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/opt/cuda/lib64",
    ]);
    for folder in folders {
        for version in ["13", "12"] {
            let path = PathBuf::from(folder).join(format!("lib{name}.so.{version}"));
            if !path.exists() {
                continue;
            }
            // SAFETY: NVIDIA's libraries may be loaded at any time; this one stays for good.
            if let Ok(library) = unsafe { libloading::Library::new(&path) } {
                std::mem::forget(library);
                return;
            }
        }
    }
}
