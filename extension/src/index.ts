/** The plug-ins of the labextension; what they do is in the files they come from. */

import { commandsPlugin } from './commands.js';
import { sidebarPlugin } from './sidebar.js';
import { untrackedPlugin } from './untracked.js';

export default [untrackedPlugin, sidebarPlugin, commandsPlugin];
