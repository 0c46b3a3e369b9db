# Made by docs/render_public.py.

from elastic_core.worker.channel import INITIALIZED as INITIALIZED, KIND as KIND, LONGEST as LONGEST, open_channel as open_channel, report as report, wait_until_ready as wait_until_ready
from elastic_core.worker.error_file import ERROR_FILE as ERROR_FILE, MEMBER as MEMBER, NO_MESSAGE as NO_MESSAGE, as_torchs as as_torchs, attach as attach, error_data as error_data, message_of as message_of, read_error_file as read_error_file, record as record, with_exit_code as with_exit_code, write_error_file as write_error_file
from elastic_core.worker.graceful_stop import should_checkpoint as should_checkpoint, somebody_leaves as somebody_leaves
from elastic_core.worker.train_state import TrainingState as TrainingState

NAMES: dict[str, str]
