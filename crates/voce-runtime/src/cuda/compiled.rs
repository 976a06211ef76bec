//! The machine code of the kernels for an architecture: compiled here, and kept in the user's cache.

use std::ffi::CString;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

use cudarc::nvrtc::sys as rtc;

use super::program::source;
use super::{CudaError, libraries};

/// Compiles the kernels for a compute capability.
pub(crate) fn compile((major, minor): (u32, u32)) -> Result<Vec<u8>, CudaError> {
    libraries::preload("nvrtc");
    // SAFETY: looks for the library.
    if !unsafe { rtc::is_culib_present() } {
        return Err(CudaError::NoLibrary { name: "libnvrtc", hint: libraries::NVRTC_HINT });
    }
    let source = CString::new(source()).expect("sources have no zero bytes");
    // Feature-specific code ("90a") has instructions that plain sm_90 code lacks.
    let arch = format!("sm_{major}{minor}{}", if major == 9 { "a" } else { "" });
    let options = [format!("--gpu-architecture={arch}"), "--std=c++17".into(), "--device-int128".into()]
        .map(|o| CString::new(o).expect("options have no zero bytes"));
    let pointers: Vec<_> = options.iter().map(|o| o.as_ptr()).collect();
    let fail = |message: String| CudaError::Compile { arch: arch.clone(), log: message };
    let ok = |code: rtc::nvrtcResult| match code {
        rtc::nvrtcResult::NVRTC_SUCCESS => Ok(()),
        code => Err(fail(format!("{code:?}"))),
    };
    let mut program = std::ptr::null_mut();
    // SAFETY: strings end in zero; places for results have the sizes that the compiler gave.
    unsafe {
        let name = c"voce.cu";
        ok(rtc::nvrtcCreateProgram(
            &mut program,
            source.as_ptr(),
            name.as_ptr(),
            0,
            std::ptr::null(),
            std::ptr::null(),
        ))?;
        let code = rtc::nvrtcCompileProgram(program, pointers.len() as i32, pointers.as_ptr());
        let result = if code == rtc::nvrtcResult::NVRTC_SUCCESS {
            let mut size = 0;
            ok(rtc::nvrtcGetCUBINSize(program, &mut size)).and_then(|()| {
                let mut image = vec![0u8; size];
                ok(rtc::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()))?;
                Ok(image)
            })
        } else {
            let mut size = 0;
            rtc::nvrtcGetProgramLogSize(program, &mut size);
            let mut log = vec![0u8; size];
            rtc::nvrtcGetProgramLog(program, log.as_mut_ptr().cast());
            Err(fail(String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned()))
        };
        rtc::nvrtcDestroyProgram(&mut program);
        result
    }
}

/// The machine code for a compute capability that is kept.
fn kept(capability: (u32, u32)) -> Option<Vec<u8>> {
    std::fs::read(cache_path(capability)?).ok().filter(|image| image.starts_with(b"\x7fELF"))
}

/// Whether there is machine code for a compute capability.
pub(crate) fn is_kept(capability: (u32, u32)) -> bool {
    kept(capability).is_some()
}

/// The machine code for a compute capability: from the cache, or compiled and put there.
pub(crate) fn image(capability: (u32, u32)) -> Result<Vec<u8>, CudaError> {
    if let Some(image) = kept(capability) {
        return Ok(image);
    }
    let image = compile(capability)?;
    if let Some(path) = cache_path(capability) {
        keep(&path, &image);
    }
    Ok(image)
}

/// Writes a file under its name once it is whole; that it cannot be kept costs a compilation next time.
fn keep(path: &Path, image: &[u8]) {
    let part = path.with_extension(format!("part{}", std::process::id()));
    let written = path
        .parent()
        .map_or(Ok(()), std::fs::create_dir_all)
        .and_then(|()| std::fs::write(&part, image))
        .and_then(|()| std::fs::rename(&part, path));
    if written.is_err() {
        let _ = std::fs::remove_file(part);
    }
}

/// Where the machine code of these very sources is kept.
fn cache_path(capability: (u32, u32)) -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|h| Path::new(&h).join(".cache")))?;
    Some(kept_at(&base, capability))
}

/// The same under a folder of caches.
fn kept_at(base: &Path, (major, minor): (u32, u32)) -> PathBuf {
    let mut hash = std::hash::DefaultHasher::new();
    source().hash(&mut hash);
    env!("CARGO_PKG_VERSION").hash(&mut hash);
    base.join("voce").join("kernels").join(format!("{:016x}-sm{major}{minor}.cubin", hash.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With `VOCE_NVRTC=1` the compiler must be there and every kernel must compile, for each generation; with
    /// `VOCE_NVRTC=90` for that one. With `VOCE_NVRTC_KEEP=DIR` a machine that has DIR as its cache need not compile them.
    #[test]
    fn kernels_compile() {
        let kept = std::env::var_os("VOCE_NVRTC_KEEP").map(PathBuf::from);
        let asked = std::env::var("VOCE_NVRTC").unwrap_or_default();
        let wanted = |&(major, minor): &(u32, u32)| asked.len() < 2 || asked == format!("{major}{minor}");
        std::thread::scope(|scope| {
            for capability in [(9, 0), (8, 9), (8, 0)].into_iter().filter(wanted) {
                let (kept, asked) = (&kept, &asked);
                scope.spawn(move || match compile(capability) {
                    Ok(image) => {
                        assert!(image.starts_with(b"\x7fELF"));
                        if let Some(dir) = kept {
                            keep(&kept_at(dir, capability), &image);
                        }
                    }
                    Err(CudaError::NoLibrary { .. }) if asked.is_empty() => {}
                    Err(e) => panic!("{e}"),
                });
            }
        });
    }
}
