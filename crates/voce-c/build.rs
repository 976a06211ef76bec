//! Gives the library the name by which programs look for it, with the number of its interface.
#![allow(clippy::print_stdout)]

/// Changes whenever a program built against the last one would break.
const INTERFACE: u32 = 0;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    match std::env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("linux" | "android" | "freebsd") => {
            println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libvoce.so.{INTERFACE}");
        }
        Ok("macos") => {
            println!("cargo::rustc-cdylib-link-arg=-Wl,-install_name,@rpath/libvoce.{INTERFACE}.dylib");
        }
        _ => {}
    }
}
