//! A speaker on a device says what it says on a CPU. The device is emulated, so little is said.
#![allow(missing_docs)]

mod support;

use support::{Talker, exact};
use voce_engine::speaker::Overlap;
use voce_runtime::cuda::Device;

#[test]
fn a_device_says_what_the_cpu_says() {
    let device = Device::emulated().unwrap();
    let on_cpu = Talker::new("lsd4", &exact());
    for overlap in [Overlap::InTurn, Overlap::Beside] {
        let options = exact().with_device(device.clone().into()).with_overlap(overlap).with_slots(2);
        let on_device = Talker::new("lsd4", &options);
        assert!(on_device.speaker.info().device.as_deref().is_some_and(|d| d.contains("emulated")));
        let say = |t: &Talker| {
            let request = t.request().with_max_frames(Some(3)).with_eos_threshold(support::ENDLESS);
            support::audio(&mut t.speaker.speak("One two.", &request).unwrap())
        };
        let (got, want) = (say(&on_device), say(&on_cpu));
        assert_eq!(got.len(), want.len(), "{overlap:?}");
        let scale = want.iter().fold(1e-9f32, |m, v| m.max(v.abs()));
        let worst = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max) / scale;
        assert!(worst < 1e-3, "{overlap:?}: off by {worst:e}");
        device.status().unwrap();
    }
}
