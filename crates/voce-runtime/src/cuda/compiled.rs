//! The machine code of the kernels for an architecture: kept, or compiled here in parts side by side.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use cudarc::nvrtc::sys as rtc;

use super::program::{Parts, unit_source};
use super::{CudaError, kept, libraries};

/// Compiles kernels for a compute capability, as many parts at once as there are cores.
pub(crate) fn compile(parts: Parts, capability: (u32, u32)) -> Result<Vec<Vec<u8>>, CudaError> {
    libraries::preload("nvrtc");
    // SAFETY: looks for the library.
    if !unsafe { rtc::is_culib_present() } {
        return Err(CudaError::NoLibrary { name: "libnvrtc", hint: libraries::NVRTC_HINT });
    }
    let units = parts.units();
    let next = AtomicUsize::new(units.start);
    let images = Mutex::new(vec![Ok(Vec::new()); units.len()]);
    let work = || loop {
        let unit = next.fetch_add(1, Ordering::Relaxed);
        if unit >= units.end {
            break;
        }
        let image = compile_unit(unit, capability);
        if image.is_err() {
            // The others need not begin.
            next.store(units.end, Ordering::Relaxed);
        }
        images.lock().unwrap_or_else(PoisonError::into_inner)[unit - units.start] = image;
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 1..cores.min(units.len()) {
            scope.spawn(work);
        }
        work();
    });
    images.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().collect()
}

fn compile_unit(unit: usize, (major, minor): (u32, u32)) -> Result<Vec<u8>, CudaError> {
    let source = CString::new(unit_source(unit)).expect("sources have no zero bytes");
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

/// The machine code for a compute capability, a part after the other: what is kept, or compiled and put into the cache.
pub(crate) fn images(parts: Parts, capability: (u32, u32)) -> Result<Vec<Vec<u8>>, CudaError> {
    if let Some(images) = kept::find(parts, capability) {
        return Ok(images);
    }
    let images = compile(parts, capability)?;
    if let Some(folder) = kept::cache() {
        // That they cannot be kept costs a compilation next time.
        let _ = kept::keep(&folder, parts, capability, &images);
    }
    Ok(images)
}

/// Compiles the kernels for a compute capability into a folder, or the user's cache, and tells the file.
pub(crate) fn compile_into(folder: Option<&Path>, capability: (u32, u32)) -> Result<PathBuf, CudaError> {
    let failed = |message: String| CudaError::Failed { call: "keeping the kernels", message };
    let folder = folder.map(Path::to_owned).or_else(kept::cache);
    let folder =
        folder.ok_or_else(|| failed("neither XDG_CACHE_HOME nor HOME is set: name a folder".into()))?;
    let images = compile(Parts::Usual, capability)?;
    kept::keep(&folder, Parts::Usual, capability, &images)
        .map_err(|e| failed(format!("{}: {e}", folder.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::program::{KERNELS, unit_of};

    fn compiled(parts: Parts, capability: (u32, u32), must: bool) -> Option<Vec<Vec<u8>>> {
        match compile(parts, capability) {
            Ok(images) => Some(images),
            Err(CudaError::NoLibrary { .. }) if !must => None,
            Err(e) => panic!("{e}"),
        }
    }

    /// With `VOCE_NVRTC=1` the compiler must be there and every kernel must compile, for each generation; with
    /// `VOCE_NVRTC=90` for that one. With `VOCE_NVRTC_KEEP=DIR` a machine that has DIR as its cache need not compile them.
    #[test]
    fn kernels_compile() {
        let folder = std::env::var_os("VOCE_NVRTC_KEEP").map(|dir| kept::under(Path::new(&dir)));
        let asked = std::env::var("VOCE_NVRTC").unwrap_or_default();
        let wanted = |&(major, minor): &(u32, u32)| asked.len() < 2 || asked == format!("{major}{minor}");
        for capability in [(9, 0), (8, 9), (8, 0)].into_iter().filter(wanted) {
            let mut images = Vec::new();
            for parts in [Parts::Usual, Parts::Frame] {
                let Some(made) = compiled(parts, capability, !asked.is_empty()) else { return };
                if let Some(folder) = &folder {
                    kept::keep(folder, parts, capability, &made).unwrap();
                }
                images.extend(made);
            }
            for kernel in KERNELS {
                let has = |image: &[u8]| {
                    let name = format!("\0{}\0", kernel.name).into_bytes();
                    image.windows(name.len()).any(|part| part == name)
                };
                let holders: Vec<usize> = (0..images.len()).filter(|unit| has(&images[*unit])).collect();
                assert_eq!(holders, [unit_of(kernel.name)], "{}", kernel.name);
            }
        }
    }
}
