//! Compiled pipelines on disk: later processes read them, damaged files are ignored, and processes
//! may share a folder.

use crate::common::{configs, gpu, gpu_number};
use forerun_core::SequenceId;
use forerun_formats::WeightType;
use forerun_formats::checkpoint::random::RandomTensors;
use forerun_gpu::{AdapterKind, GpuDevice, GpuModel, GpuOptions, GpuWeights};
use forerun_lm::{ForwardRequest, LanguageModel};
use forerun_model::CachedTransformer;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

/// The variable with the folder of a process that a test starts.
const FOLDER: &str = "FORERUN_TEST_PIPELINES";

fn open(folder: Option<&Path>) -> Arc<GpuDevice> {
    let options =
        GpuOptions { pipeline_folder: folder.map(Path::to_owned), ..GpuOptions::default() };
    GpuDevice::open_with(gpu_number(), options).unwrap()
}

/// Returns the bits of the logits of three passes, after the last of which pipelines are being
/// stored.
fn bits(device: &Arc<GpuDevice>) -> Vec<u32> {
    let architecture = configs()[0].architecture();
    let tensors = RandomTensors::new(&architecture, 5);
    let weights = GpuWeights::load_architecture(device, architecture, &tensors, WeightType::Bf16);
    let mut model = CachedTransformer::new(GpuModel::new(Arc::new(weights.unwrap())));
    let tokens: Vec<u32> = (0..40).map(|token| token * 7 % 250).collect();
    let mut logits = |end: usize| {
        let request = ForwardRequest::next_token(SequenceId(0), &tokens[..end]);
        model.logits(&request).unwrap().logits
    };
    [38, 39, 40].into_iter().flat_map(&mut logits).map(f32::to_bits).collect()
}

fn only_file(folder: &Path) -> Option<PathBuf> {
    let files: Vec<_> = fs::read_dir(folder).ok()?.map(|file| file.unwrap().path()).collect();
    assert!(files.len() <= 1, "{files:?}");
    files.into_iter().next()
}

/// Where wgpu's header of the data has a byte of the device's number, and one of the key of the
/// driver's version.
const DEVICE: usize = 27;
const DRIVER: usize = 32;

/// The bytes of the header that say which driver of which device the data are of.
const IDENTITY: usize = 48;

/// Returns what a file has before its checksum, and the driver's data after it.
fn parts(file: &[u8]) -> (&[u8], &[u8]) {
    let start = file.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    (&file[..start], &file[start + size_of::<u64>()..])
}

/// Returns a file in which one byte of the data is different, with the right checksum (FNV-1a).
fn with_other_byte(file: &[u8], byte: usize) -> Vec<u8> {
    let (start, data) = parts(file);
    let mut data = data.to_vec();
    data[byte] ^= 1;
    let add = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let checksum = data.iter().fold(0xcbf2_9ce4_8422_2325, add);
    [start, &checksum.to_le_bytes(), &data].concat()
}

#[test]
fn pipelines_are_stored_and_damaged_files_are_ignored() {
    let Some(device) = gpu() else { return };
    let is_software = device.adapter().kind == AdapterKind::Software;
    let expected = bits(device);
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("a new folder");
    let first = open(Some(&folder));
    assert_eq!(bits(&first), expected);
    // The file is written until the GPU is dropped.
    drop(first);
    let Some(file) = only_file(&folder) else {
        return println!("skipped: this driver does not give its pipelines away");
    };
    let stored = fs::read(&file).unwrap();
    assert!(stored.starts_with(b"forerun pipelines "));
    let mut damaged = stored.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let with_wrong_driver = [&stored[..stored.len() / 2], &[0; 100]].concat();
    // Whole files of another device, which wgpu refuses with an error, and of another version of
    // the driver.
    let others = [DEVICE, DRIVER].map(|byte| with_other_byte(&stored, byte));
    let [of_other_device, of_other_driver] = &others;
    let files = [
        &stored[..],
        of_other_device,
        of_other_driver,
        &damaged,
        &with_wrong_driver,
        &stored[..20],
        b"",
        &[255; 1000],
    ];
    for content in files {
        fs::write(&file, content).unwrap();
        let device = open(Some(&folder));
        assert_eq!(bits(&device), expected);
        assert_eq!(device.check(), Ok(()));
        drop(device);
        assert_eq!(only_file(&folder).unwrap(), file);
        let found = fs::read(&file).unwrap();
        assert_eq!(parts(&found).1[..IDENTITY], parts(&stored).1[..IDENTITY]);
        // Drivers that compile may store pipelines in another order.
        if is_software {
            assert_eq!(found, stored);
        }
    }
    // What cannot be written is not stored.
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    let device = open(Some(&folder));
    assert_eq!(bits(&device), expected);
    device.destroy();
    drop(device);
    assert!(file.is_dir());
}

/// Several processes start at once, with a common folder. All give the same bits, and leave one
/// whole file.
#[test]
fn processes_share_a_folder() {
    if gpu().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let run = || {
        Command::new(std::env::current_exe().unwrap())
            .args(["pipeline_files::a_process_with_a_folder", "--exact", "--nocapture"])
            .env(FOLDER, folder.path())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    };
    let line = |text: &str| text.lines().find(|line| line.starts_with("bits")).unwrap().to_owned();
    let children: Vec<_> = (0..4).map(|_| run()).collect();
    let mut found = children.into_iter().map(|child| {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        line(&String::from_utf8_lossy(&output.stdout))
    });
    let first = found.next().unwrap();
    assert!(found.all(|other| other == first));
    only_file(folder.path());
    let later = run().wait_with_output().unwrap();
    assert_eq!(line(&String::from_utf8_lossy(&later.stdout)), first);
}

/// What [`processes_share_a_folder`] starts. On its own, it does nothing.
#[test]
fn a_process_with_a_folder() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        println!("bits {:?}", bits(&open(Some(Path::new(&folder)))));
    }
}

/// Measures how long a GPU takes to open and to compute the first passes, with and without stored
/// pipelines.
#[test]
#[ignore = "a measurement"]
fn time_to_the_first_pass() {
    let folder = std::env::var_os(FOLDER).map(PathBuf::from);
    let started = Instant::now();
    let device = open(folder.as_deref());
    let opened = started.elapsed();
    bits(&device);
    let bytes = folder.and_then(|folder| fs::metadata(only_file(&folder)?).ok());
    let bytes = bytes.map_or(0, |file| file.len());
    println!("opened in {opened:?}, passes after {:?}, {bytes} bytes stored", started.elapsed());
}
