//! Leaves the names of functions out of a release build for Linux, and for Windows by GNU's linker, where they are a tenth of
//! the binary: panics name file and line without them. Builds with debug information, such as `--profile profiling`, keep them.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|v| v == value);
    let linked_by_gnu = is("CARGO_CFG_TARGET_OS", "linux")
        || is("CARGO_CFG_TARGET_OS", "windows") && is("CARGO_CFG_TARGET_ENV", "gnu");
    if is("PROFILE", "release") && is("DEBUG", "false") && linked_by_gnu {
        println!("cargo::rustc-link-arg-bins=-Wl,--strip-all");
    }
}
