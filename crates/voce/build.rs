//! Leaves the names of functions out of a release build for Linux, where they are a tenth of the binary: panics name file and
//! line without them. Builds with debug information, such as `--profile profiling`, keep them.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|v| v == value);
    if is("PROFILE", "release") && is("DEBUG", "false") && is("CARGO_CFG_TARGET_OS", "linux") {
        println!("cargo::rustc-link-arg-bins=-Wl,--strip-all");
    }
}
