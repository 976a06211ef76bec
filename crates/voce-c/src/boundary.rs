//! Pointers of C as references of Rust: the only file of this crate that looks behind them.

use std::ffi::{CStr, CString, c_char};
use std::mem::MaybeUninit;

use crate::status::{Fault, Outcome};

/// Structs of options: they begin with their size, and all bits zero are their defaults.
///
/// # Safety
/// The type is `repr(C)`, its first field is the `usize` of its size, and all bits zero make a valid value.
pub(crate) unsafe trait Options: Copy {}

/// A text that may be left out by a null pointer.
///
/// # Safety
/// `text` is null or points to bytes that end with a zero and stay as they are for `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Outcome<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: it is not null, and the rest is the caller's word.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Fault::argument(format!("{what} is not UTF-8")))
}

/// A text that must be there.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn some_text<'a>(pointer: *const c_char, what: &str) -> Outcome<&'a str> {
    // SAFETY: the caller's word.
    unsafe { text(pointer, what) }?.ok_or_else(|| Fault::argument(format!("{what} is a null pointer")))
}

/// Samples; a null pointer is allowed where there are none.
///
/// # Safety
/// `samples` is null or points to `count` floats that stay as they are for `'a`.
pub(crate) unsafe fn samples<'a>(samples: *const f32, count: usize) -> Outcome<&'a [f32]> {
    if count == 0 {
        return Ok(&[]);
    }
    if samples.is_null() {
        return Err(Fault::argument("the samples are a null pointer"));
    }
    if !samples.is_aligned() || count > isize::MAX as usize / size_of::<f32>() {
        return Err(Fault::argument("the samples are no array of floats"));
    }
    // SAFETY: not null, aligned, of a size that can be; the rest is the caller's word.
    Ok(unsafe { std::slice::from_raw_parts(samples, count) })
}

/// Options of this version or an older, shorter one; a null pointer stands for the defaults.
///
/// # Safety
/// `options` is null or points to a struct of as many bytes as its first field says.
pub(crate) unsafe fn options<T: Options>(options: *const T) -> Outcome<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    if !options.is_null() {
        if !options.is_aligned() {
            return Err(Fault::argument("the options are no such struct"));
        }
        // SAFETY: not null and aligned; every such struct begins with its size.
        let size = unsafe { options.cast::<usize>().read() };
        if size < size_of::<usize>() || size > size_of::<T>() {
            let most = size_of::<T>();
            return Err(Fault::argument(format!(
                "the options say that they have {size} bytes: set `size` to their sizeof, which is {most} in this version"
            )));
        }
        // SAFETY: `size` bytes are there by the caller's word, and no more than the value has.
        unsafe { options.cast::<u8>().copy_to_nonoverlapping(value.as_mut_ptr().cast(), size) };
    }
    // SAFETY: zeros are valid by the trait, and so is what the caller has set.
    Ok(unsafe { value.assume_init() })
}

/// The place that a result goes to.
pub(crate) fn out<'a, T>(
    place: Option<&'a mut MaybeUninit<T>>,
    what: &str,
) -> Outcome<&'a mut MaybeUninit<T>> {
    place.ok_or_else(|| Fault::argument(format!("the place for {what} is a null pointer")))
}

/// A handle that must be there.
pub(crate) fn handle<'a, T>(handle: Option<&'a T>, what: &str) -> Outcome<&'a T> {
    handle.ok_or_else(|| Fault::argument(format!("the {what} is a null pointer")))
}

/// Frees what [`CString::into_raw`] gave away.
///
/// # Safety
/// `string` is null or came from there, and is not used again.
pub(crate) unsafe fn free_text(string: *mut c_char) {
    if !string.is_null() {
        // SAFETY: the caller's word.
        drop(unsafe { CString::from_raw(string) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Status;

    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Two {
        size: usize,
        value: u32,
    }

    // SAFETY: numbers, the size first.
    unsafe impl Options for Two {}

    #[test]
    fn texts_are_checked() {
        // SAFETY: literals that end with a zero, or null.
        unsafe {
            assert_eq!(text(c"grüß".as_ptr(), "x").unwrap(), Some("grüß"));
            assert_eq!(text(std::ptr::null(), "x").unwrap(), None);
            let bad = text(c"\xff".as_ptr(), "the voice").unwrap_err();
            assert_eq!((bad.status, &*bad.text), (Status::BadArgument, "the voice is not UTF-8"));
            assert!(some_text(std::ptr::null(), "the text").unwrap_err().text.contains("null"));
        }
    }

    #[test]
    fn samples_are_checked() {
        let three = [1.0f32, 2.0, 3.0];
        // SAFETY: as many as there are, or refused before they are read.
        unsafe {
            assert_eq!(samples(three.as_ptr(), 3).unwrap(), three);
            assert_eq!(samples(std::ptr::null(), 0).unwrap(), [0.0f32; 0]);
            assert!(samples(std::ptr::null(), 1).is_err());
            assert!(samples(three.as_ptr().cast::<u8>().wrapping_add(1).cast(), 1).is_err());
            assert!(samples(three.as_ptr(), usize::MAX).is_err());
        }
    }

    #[test]
    fn older_options_are_taken_and_newer_ones_refused() {
        let read = |size| {
            let given = Two { size, value: 7 };
            // SAFETY: the struct has at least the bytes that are read of it.
            unsafe { options(&raw const given) }.map(|two| two.value)
        };
        assert_eq!(read(size_of::<Two>()).unwrap(), 7);
        assert_eq!(read(size_of::<usize>()).unwrap(), 0);
        assert!(read(0).is_err() && read(size_of::<Two>() + 1).is_err());
        // SAFETY: null is allowed.
        assert_eq!(unsafe { options::<Two>(std::ptr::null()) }.unwrap().value, 0);
    }
}
