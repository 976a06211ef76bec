//! The door of every entry: panics stop here, and errors are kept for the thread that made the call.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::boundary;
use crate::status::{Fault, Outcome, Status};

/// The last error of a thread.
#[derive(Default)]
struct Last {
    text: CString,
    code: CString,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::default();
}

/// A text as C has it; characters that would end it early are left out.
pub(crate) fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "")).unwrap_or_default()
}

fn keep(code: &str, text: &str) {
    // A thread that is ending has no place for it.
    let _ = LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            *last = Last { text: c_text(text), code: c_text(code) };
        }
    });
}

/// Runs the body of an entry that returns a status.
pub(crate) fn guard(body: impl FnOnce() -> Outcome) -> Status {
    guard_or(|status| status, body)
}

/// Runs the body of any entry; `failed` makes what it returns of the status of an error.
pub(crate) fn guard_or<T>(failed: impl FnOnce(Status) -> T, body: impl FnOnce() -> Outcome<T>) -> T {
    // Handles stay as they are when a body panics: what is behind their locks may be unfinished, never invalid.
    let fault = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return value,
        Ok(Err(fault)) => fault,
        Err(panic) => {
            let said = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
            let said = said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Fault {
                status: Status::Internal,
                code: "internal",
                text: format!("a fault of the library: {said}"),
            }
        }
    };
    keep(fault.code, &fault.text);
    failed(fault.status)
}

/// The text of the last error on this thread, for people; empty before the first. Valid until the next error on this
/// thread.
#[unsafe(no_mangle)]
pub extern "C" fn voce_last_error() -> *const c_char {
    guard_or(|_| c"".as_ptr(), || Ok(LAST.with(|last| last.borrow().text.as_ptr())))
}

/// The short name of the last error on this thread, for programs, such as `unknown_voice`; empty before the first. Valid
/// until the next error on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn voce_last_error_code() -> *const c_char {
    guard_or(|_| c"".as_ptr(), || Ok(LAST.with(|last| last.borrow().code.as_ptr())))
}

/// The version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn voce_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    guard_or(|_| c"".as_ptr(), || Ok(VERSION.as_ptr().cast()))
}

/// Frees a string that this library has given to be freed. Null is allowed.
///
/// # Safety
/// `string` is null or came from this library to be freed, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn voce_string_free(string: *mut c_char) {
    guard_or(drop, || {
        // SAFETY: the caller's word, as above.
        unsafe { boundary::free_text(string) };
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn last() -> (String, String) {
        LAST.with(|last| {
            let last = last.borrow();
            let text = |s: &CStr| s.to_str().unwrap().to_owned();
            (text(&last.text), text(&last.code))
        })
    }

    #[test]
    fn a_panic_is_a_status_with_its_text() {
        assert_eq!(guard(|| panic!("there are {} of them", 2)), Status::Internal);
        assert_eq!(last(), ("a fault of the library: there are 2 of them".into(), "internal".into()));
        assert_eq!(guard_or(|_| 0, || panic!("a word")), 0);
        assert_eq!(last().0, "a fault of the library: a word");
    }

    #[test]
    fn errors_are_each_thread_s_own_and_stay_until_the_next() {
        assert_eq!(guard(|| Err(Fault::request("a\0b"))), Status::BadRequest);
        assert_eq!(guard(|| Ok(Status::Ok)), Status::Ok);
        assert_eq!(last(), ("ab".into(), "bad_request".into()));
        std::thread::spawn(|| assert_eq!(last(), (String::new(), String::new()))).join().unwrap();
    }
}
